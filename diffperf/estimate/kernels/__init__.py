"""Time of kernels on one device: the hierarchical roofline, and the kinds of kernels that it bounds."""
