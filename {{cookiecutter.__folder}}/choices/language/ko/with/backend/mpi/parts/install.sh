python3 -m {{ cookiecutter.package_name }} doctor  # torch에 MPI가 들어 있는지, 아니면 무엇을 고쳐야 하는지
