# Images are fixed by their digests; `docker buildx imagetools inspect debian:trixie-slim` prints the newest one.
FROM debian:trixie-20261005-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f

COPY --from=ghcr.io/astral-sh/uv:0.9.9@sha256:f6e3549ed287fee0ddde2460a2a74a2d74366f84b04aaa34c1f19fec40da8652 /uv /bin/uv
ENV UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1 UV_BREAK_SYSTEM_PACKAGES=1
