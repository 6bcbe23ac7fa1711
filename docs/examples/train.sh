#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"8"}
MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
    --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights
    --seq-length 8192 --vocab-size 128256
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py ${MODEL[@]} \
    --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer \
    --tensor-model-parallel-size 2 --sequence-parallel --lr 3e-4
