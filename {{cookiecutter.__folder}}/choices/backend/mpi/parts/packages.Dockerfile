
{{ "# Debian's torch has no CUDA: for GPUs, begin with an image whose torch has both MPI and CUDA, and leave this out.
" if cookiecutter.hardware == "gpu" else "" -}}
# Debian's torch was built with MPI; PyPI's was not. pip sees that it is there, and uv would install the other one over it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-pip python3-torch openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
