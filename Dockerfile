# An image with all commands. With the default index of pip, PyTorch's Linux wheels include CUDA, so the same image runs on GPUs
# (docker run --gpus all) and on CPUs. A smaller image for CPUs alone takes PyTorch from its index of CPU builds:
#   docker build -t ippo-cli .
#   docker build -t ippo-cli:cpu --build-arg TORCH_INDEX=URL_OF_PYTORCHS_CPU_WHEELS .
#   docker run --rm --gpus all -v "$PWD:/runs" ippo-cli ippo-train task=sorting
ARG BASE=python:3.11-slim
FROM ${BASE}

# DeepSpeed compiles its CPU optimizer (deepspeed=zero3_offload) when it is first used.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends build-essential ninja-build \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/ippo-cli
ARG TORCH_INDEX=
RUN python3 -m venv /opt/venv && if [ -n "${TORCH_INDEX}" ]; then /opt/venv/bin/pip install --no-cache-dir "torch>=2.10,<3" --index-url "${TORCH_INDEX}"; fi
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY conf ./conf
ARG EXTRAS=environments,math,sweeps,wandb
RUN pip install --no-cache-dir ".[${EXTRAS}]"

# Runs, data and reward functions are in the mounted folder. Hugging Face models are cached in HF_HOME.
WORKDIR /runs
ENV HF_HOME=/runs/.cache/huggingface
CMD ["ippo-train", "--help"]
