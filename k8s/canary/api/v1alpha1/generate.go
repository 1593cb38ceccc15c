package v1alpha1

//go:generate controller-gen object paths=. crd output:crd:dir=../../../../charts/canary/crds
