#!/bin/sh
# TorchElastic: every worker asks for itself, so that a restart by torchrun asks again and all
# ranks of one restart get the same checkpoint. Run it on every node.
#
# --no-python: the workers are ckptgov, which starts Python. An rdzv id of this launch's own, and a
# store made anew for each start: together they name each start, also when members come and go.
set -eu

: "${CKPTGOV_URL:?where the service listens}"
: "${RDZV_ID:?the same on all nodes, another one for each launch}"
: "${RDZV_ENDPOINT:?host:port of one of the nodes}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun \
  --nnodes "${NNODES:-1}" --nproc-per-node "${GPUS:-8}" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-id "$RDZV_ID" --rdzv-endpoint "$RDZV_ENDPOINT" \
  --no-python \
  ckptgov exec team/run --node "$(hostname)" \
    --load-failed-code 3 --started-after 10m --resume-args '--resume {path} --step {step}' -- \
  python train.py --config train.yaml {resume_args}
