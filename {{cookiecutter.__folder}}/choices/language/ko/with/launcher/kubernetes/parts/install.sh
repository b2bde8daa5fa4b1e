export IMAGE=registry.example.com/{{ cookiecutter.__kubernetes_name }}:1  # 클러스터가 이미지를 가져오는 레지스트리
docker build -t "$IMAGE" . && docker push "$IMAGE"{{ "" if cookiecutter.use_docker else "  # Dockerfile은 직접 작성" }}
kubectl apply -f scripts/volume.yaml  # 처음 한 번: 학습 결과를 보관할 볼륨
