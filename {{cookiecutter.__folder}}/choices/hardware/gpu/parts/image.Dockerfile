FROM python:3.12-slim

# uv installs torch for the CUDA version named here; nvidia-smi on the host says up to which one its driver goes.
COPY --from=ghcr.io/astral-sh/uv:0.9.9 /uv /bin/uv
ENV UV_TORCH_BACKEND=cu128
ENV UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1
