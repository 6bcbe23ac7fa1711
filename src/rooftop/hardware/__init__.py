from rooftop.hardware._types import *
from rooftop.hardware._types import Chip, Memory, Slice, Torus, Switch, Level, Price
def peak(chip, d): return chip.flops[d]
def chip(name):
    if name=="v5p": return Chip("v5p","TPU v5p","tpu",{"bf16":4.59e14},7.2e12,96e9,2.765e12,Memory("VMEM",1e8,5e13),(8,128,128),2,1.75e9,1.5e10,4,4e11,400,Price(4.2,"us","2025-02","","book"))
    return Chip("h100","H100","gpu",{"bf16":9.89e14},6.6e13,80e9,3.35e12,Memory("SMEM",5e7,2e13),(128,64,128),132,1.7e9,6.4e10,8,2e12,700,Price(10.8,"us","2025-02","","book"))
def slice_of(t):
    n,_,d=t.partition(":")
    c=chip(n)
    if n=="v5p":
        dims=tuple(int(x) for x in d.split("x")); w=all(x%4==0 for x in dims)
        return Slice(t,c,(Torus("ici",dims,(w,)*3,9e10,1e-6),))
    k=int(d)
    return Slice(t,c,(Switch("nvlink",8,4.5e11,1e-6,True),Switch("ib",k//8,5e10,5e-6)))
def standard_slices(n): return ["v5p:2x2x1","v5p:4x4x4","v5p:8x8x8"] if n=="v5p" else ["h100:8","h100:64","h100:512"]
