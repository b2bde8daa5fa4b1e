FROM python:3.12-slim

# uv installs torch for TPUs.
COPY --from=ghcr.io/astral-sh/uv:0.9.9 /uv /bin/uv
ENV UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1
