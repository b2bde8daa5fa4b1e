python3 -m {{ cookiecutter.package_name }} predict --checkpoint {{ cookiecutter.__run_dir }} image.png  # image.png-mask.png를 저장: 픽셀 값이 클래스 번호이므로 검게 보입니다
