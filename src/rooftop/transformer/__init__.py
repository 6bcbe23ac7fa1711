import sys; sys.path.insert(0,"/tmp")
from dataclasses import dataclass
from rooftop.arrays import *
@dataclass(frozen=True)
class Architecture: name:str; d:int=8192; f:int=28672; k:int=8; g:int=8; v:int=128256; layers:int=80
@dataclass(frozen=True)
class Block: program:Program; count:int
@dataclass(frozen=True)
class Programs: embed:Program; blocks:tuple; head:Program
def architecture(n): return Architecture(n) if "70b" in n else Architecture(n,16384,53248,8,16,128256,126)
def programs(a,seq):
    from prog import block
    from dataclasses import replace
    b=replace(block(),axes=dict(T=seq,S=seq,D=a.d,F=a.f,K=a.k,G=a.g,H=128))
    ax=dict(T=seq,D=a.d,V=a.v)
    A=Array
    e=Program("embed",ax,(A("tokens",("B","T"),"int32","input","inner"),A("embedding",("V","D"),"bf16","weight","weight"),A("x",("B","T","D"),"bf16","activation","residual")),(Op("embed","lookup",("embedding","tokens"),"x",part="embedding"),))
    h=Program("head",ax,(A("x",("B","T","D"),"bf16","input","residual"),A("nf",("D",),"bf16","weight","weight"),A("y",("B","T","D"),"bf16","activation","residual"),A("lm_head",("V","D"),"bf16","weight","weight"),A("logits",("B","T","V"),"fp32","activation","inner"),A("loss",(),"fp32","activation","inner")),
      (Op("norm","map",("x","nf"),"y",4,part="head"),Op("head","einsum",("y","lm_head"),"logits",part="head"),Op("loss","loss",("logits",),"loss",5,part="head")))
    return Programs(e,(Block(b,a.layers),),h)
def training_flops_per_token(a,seq): return 6*69.5e9+ 6*80*4096*8192
