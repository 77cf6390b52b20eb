"""The questions that users ask, as Python functions; the command line asks and answers through them."""
