python3 -m {{ cookiecutter.package_name }} predict --checkpoint {{ cookiecutter.__run_dir }} "def "  # 이어서 쓰기
