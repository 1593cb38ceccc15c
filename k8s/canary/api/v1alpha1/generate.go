package v1alpha1

//go:generate controller-gen object crd:maxDescLen=240 paths=. output:crd:dir=../../config/crd
//go:generate cp ../../config/crd/canary.waitlist.internal_canaries.yaml ../../../../charts/canary/files/crd.yaml
