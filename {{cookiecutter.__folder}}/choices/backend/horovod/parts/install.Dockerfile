# The compiler leaves when Horovod is built.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential \
    && PIP_NO_CACHE_DIR=1 scripts/install_horovod.sh \
    && python3 -m pip uninstall --yes cmake \
    && apt-get purge -y --auto-remove -o APT::AutoRemove::RecommendsImportant=false \
        -o APT::AutoRemove::SuggestsImportant=false build-essential \
    && rm -rf .cache /var/lib/apt/lists/*
