 \
    && uv pip install "setuptools<81" wheel \
    && uv pip install --no-build-isolation visdom==0.2.4