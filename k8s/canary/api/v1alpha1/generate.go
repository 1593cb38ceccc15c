package v1alpha1

//go:generate controller-gen object crd paths=. output:crd:dir=../../config/crd
