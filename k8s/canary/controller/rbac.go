package controller

//go:generate controller-gen rbac:roleName=canary paths=. output:rbac:dir=../config/rbac

// The rights that the operator uses, all in the namespaces that it works in.

//+kubebuilder:rbac:groups=canary.waitlist.internal,resources=canaries,verbs=get;list;watch;update
//+kubebuilder:rbac:groups=canary.waitlist.internal,resources=canaries/status,verbs=update
//+kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;update;patch
//+kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update
//+kubebuilder:rbac:groups="",resources=configmaps;secrets,verbs=get
//+kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
//+kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch
//+kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=httproutes,verbs=get;list;watch;create;update
//+kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gateways,verbs=get
//+kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update
