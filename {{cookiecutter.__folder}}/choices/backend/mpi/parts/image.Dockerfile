FROM debian:trixie-slim

COPY --from=ghcr.io/astral-sh/uv:0.9.9 /uv /bin/uv
ENV UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1 UV_BREAK_SYSTEM_PACKAGES=1
