python3 -m {{ cookiecutter.package_name }} predict --checkpoint {{ cookiecutter.__run_dir }} image.png  # writes image.png-mask.png: each pixel is the number of its class, so that it looks black
