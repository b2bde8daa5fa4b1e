python3 -m {{ cookiecutter.package_name }} doctor  # is torch built with MPI? what to fix if not
