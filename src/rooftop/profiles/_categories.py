"""Names of the kinds of work that the code decides by."""

MATMUL, ATTENTION, CONVOLUTION = "matmul", "attention", "convolution"
COLLECTIVE, TRANSFER, WAIT, UNKNOWN = "collective", "host transfer", "transfer wait", "unknown"
#: Kinds whose FLOPs run on the matrix unit.
MATRIX = (MATMUL, ATTENTION, CONVOLUTION)
