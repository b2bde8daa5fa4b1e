export IMAGE=registry.example.com/{{ cookiecutter.__kubernetes_name }}:1  # a registry that the cluster pulls from
docker build -t "$IMAGE" . && docker push "$IMAGE"{{ "" if cookiecutter.use_docker else "  # with a Dockerfile of your own" }}
kubectl apply -f scripts/volume.yaml  # once: where the runs are kept
