package controller

//go:generate controller-gen rbac:roleName=canary paths=. output:rbac:dir=../config/rbac
//go:generate cp ../config/rbac/role.yaml ../../../charts/canary/files/role.yaml

// The rights that the operator uses, all in the namespaces that it works in. What it watches it reads from memory and never gets.

//+kubebuilder:rbac:groups=canary.waitlist.internal,resources=canaries,verbs=list;watch;patch
//+kubebuilder:rbac:groups=canary.waitlist.internal,resources=canaries/status,verbs=update
//+kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;create;update;patch
//+kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list;watch
//+kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
//+kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;update
//+kubebuilder:rbac:groups="",resources=configmaps;secrets,verbs=get
//+kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
//+kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch
//+kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=httproutes,verbs=list;watch;create;update
//+kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gateways,verbs=get
//+kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update
