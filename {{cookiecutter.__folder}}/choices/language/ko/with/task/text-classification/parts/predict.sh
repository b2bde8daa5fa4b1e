python3 -m {{ cookiecutter.package_name }} predict --checkpoint {{ cookiecutter.__run_dir }} "def run(loop):"  # 어느 클래스인지
