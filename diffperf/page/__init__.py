"""The live page: a server on the loopback interface, and the page that it serves."""
