 \
    && {{ cookiecutter.__image_pip }} install "setuptools<81" \
    && {{ cookiecutter.__image_pip }} install --no-build-isolation visdom==0.2.4