python3 -m {{ cookiecutter.package_name }} predict --checkpoint {{ cookiecutter.__run_dir }} image.png  # image.png-mask.png를 저장
