"""Stub."""
_BITS={"fp32":32,"tf32":32,"int32":32,"bf16":16,"fp16":16,"fp8":8,"int8":8,"int4":4,"fp4":4}
def dtype(n:str)->str: return n
def dtype_bytes(n:str)->float: return _BITS[n]/8
