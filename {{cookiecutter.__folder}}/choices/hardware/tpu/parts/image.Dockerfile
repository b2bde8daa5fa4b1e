# Images are fixed by their digests; `docker buildx imagetools inspect python:3.12-slim` prints the newest one.
FROM python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

# uv installs torch_xla, with the torch that it fits.
COPY --from=ghcr.io/astral-sh/uv:0.9.9@sha256:f6e3549ed287fee0ddde2460a2a74a2d74366f84b04aaa34c1f19fec40da8652 /uv /bin/uv
ENV UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1 UV_COMPILE_BYTECODE=1
