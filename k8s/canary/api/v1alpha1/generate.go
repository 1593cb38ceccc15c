package v1alpha1

//go:generate controller-gen object crd:maxDescLen=240 paths=. output:crd:dir=../../config/crd
