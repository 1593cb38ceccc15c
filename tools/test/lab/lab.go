// Package lab runs a Kubernetes cluster for tests on one machine without containers, virtual machines or access to the
// machine's network:
//
//	namespace.go  a network namespace that holds every address
//	cluster.go    the real etcd, API server, controllers and scheduler
//	node.go       nodes whose pods are local processes
//	pod.go        one pod: environment, volumes, probes, restarts
//	container.go  a process inside an image's files, confined as its pod demands
//	image.go      images as the nodes pull them, by digest
//	dns.go        names of services
//	gateway.go    HTTPRoute and Ingress to ready pods
//	deploy.go     the suite's chart in place of the standalone's services
//
// These are real: objects, admission (restricted pod security), validation, controllers, scheduling, endpoints, images,
// users, read-only files, probes and signals. These differ: pods share one network namespace, each with its own address,
// so network policies are not enforced; there are no cluster addresses, and service names resolve to pods; memory limits
// are not enforced. The lab needs root on Linux.
package lab
