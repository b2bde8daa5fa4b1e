
# Debian's torch was built with MPI; PyPI's was not.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-torch openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
