// Package lab is a Kubernetes cluster for tests on one machine without
// containers, virtual machines or a network of its own:
//
//	namespace.go  a network namespace that holds every address
//	cluster.go    the real etcd, API server, controllers and scheduler
//	node.go       nodes whose pods are local processes
//	pod.go        one pod: environment, volumes, probes, restarts
//	container.go  a process inside an image's files, as its pod demands it
//	image.go      images as the nodes pull them, by digest
//	dns.go        names of services
//	gateway.go    HTTPRoute and Ingress to ready pods
//	deploy.go     the suite's chart in place of the standalone's six services
//
// What is real: objects, admission (restricted pod security), validation,
// controllers, scheduling, endpoints, images, users, read-only files,
// probes, signals. What is not: pods share one network namespace, each with an
// address of its own, so network policies are not enforced; there are no
// cluster addresses, names of services resolve to their pods; a container may
// use what memory it likes. It needs root, on Linux.
package lab
