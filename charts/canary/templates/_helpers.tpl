{{/* <release>-canary, or the release's name if it says so already. */}}
{{- define "canary.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "canary" $name) }}{{ $name = printf "%s-canary" $name }}{{ end -}}
{{- if gt (len $name) 54 -}}
{{- fail (printf "The release name is too long: %s-gateways exceeds 63 characters." $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Call the following with (list $ "operator"|"retire"). */}}
{{- define "canary.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: canary
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "canary.labels" -}}
{{- $root := index . 0 -}}
{{ include "canary.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "canary-%s" $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Name and labels of an object. The Job runs after everything else is gone, so what it needs are hooks; the last argument is the
     hook's weight. */}}
{{- define "canary.metadata" -}}
{{- $root := index . 0 -}}
{{- $retire := eq (index . 1) "retire" -}}
name: {{ include "canary.fullname" $root }}{{ if $retire }}-retire{{ end }}{{ index . 2 }}
labels:
  {{- include "canary.labels" . | nindent 2 }}
{{- if $retire }}
annotations:
  helm.sh/hook: post-delete
  helm.sh/hook-weight: {{ index . 3 | quote }}
  # A failed Job stays, with its log, until the next attempt.
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
{{- end -}}

{{/* The namespaces that it works in, as a JSON list; empty: all. */}}
{{- define "canary.namespaces" -}}
{{- if .Values.allNamespaces }}{{ toJson list }}{{ else }}{{ toJson (default (list .Release.Namespace) .Values.namespaces) }}{{ end -}}
{{- end -}}

{{/* The rights that controller-gen found, as a JSON list: those on leases or on gateways, or with "" the rest. The operator's leases are
     in its own namespace, Gateways in any. */}}
{{- define "canary.rules" -}}
{{- $rules := list -}}
{{- range ((index . 0).Files.Get "files/role.yaml" | fromYaml).rules -}}
{{- $of := "" -}}
{{- if has "leases" .resources }}{{ $of = "leases" }}{{ end -}}
{{- if has "gateways" .resources }}{{ $of = "gateways" }}{{ end -}}
{{- if eq $of (index $ 1) }}{{ $rules = append $rules . }}{{ end -}}
{{- end -}}
{{- toJson $rules -}}
{{- end -}}

{{/* The account and its rights. */}}
{{- define "canary.rbac" -}}
{{- $root := index . 0 -}}
{{- $who := index . 1 -}}
{{- $name := printf "%s%s" (include "canary.fullname" $root) (ternary "-retire" "" (eq $who "retire")) -}}
{{- $namespaces := include "canary.namespaces" $root | fromJsonArray -}}
{{- $subjects := list (dict "kind" "ServiceAccount" "name" $name "namespace" $root.Release.Namespace) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- $metadata := include "canary.metadata" (list $root $who "" "-10") | fromYaml }}
  {{- with $root.Values.serviceAccount.annotations }}
  {{- $_ := set $metadata "annotations" (merge (default dict $metadata.annotations) .) }}
  {{- end }}
  {{- toYaml $metadata | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "canary.metadata" (list $root $who "" "-10") | nindent 2 }}
rules:
  {{- include "canary.rules" (list $root "") | fromJsonArray | toYaml | nindent 2 }}
{{- range $namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "canary.metadata" (list $root $who "" "-5") | nindent 2 }}
  namespace: {{ . }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects: {{ toJson $subjects }}
{{- else }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "canary.metadata" (list $root $who "" "-5") | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects: {{ toJson $subjects }}
{{- end }}
---
# The Gateways of routes may be in any namespace.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "canary.metadata" (list $root $who "-gateways" "-10") | nindent 2 }}
rules:
  {{- include "canary.rules" (list $root "gateways") | fromJsonArray | toYaml | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "canary.metadata" (list $root $who "-gateways" "-5") | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}-gateways}
subjects: {{ toJson $subjects }}
---
# The lease of the leader.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "canary.metadata" (list $root $who "-leases" "-10") | nindent 2 }}
rules:
  {{- include "canary.rules" (list $root "leases") | fromJsonArray | toYaml | nindent 2 }}
  - {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "canary.metadata" (list $root $who "-leases" "-5") | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}-leases}
subjects: {{ toJson $subjects }}
{{- end -}}

{{/* The spec of a pod, common to the operator and the Job; the third argument has more fields of the container. */}}
{{- define "canary.pod" -}}
{{- $root := index . 0 -}}
{{- $who := index . 1 -}}
serviceAccountName: {{ include "canary.fullname" $root }}{{ if eq $who "retire" }}-retire{{ end }}
# The operator works through the API server.
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ $who }}
    {{- $image := $root.Values.image }}
    {{- if not $image.repository }}{{ fail "Set image.repository to the repository of the operator's image." }}{{ end }}
    {{- $version := printf ":%s" (default $root.Chart.AppVersion $image.tag) }}
    image: {{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}{{ $version }}{{ end }}
    imagePullPolicy: {{ $image.pullPolicy }}
    args:
      - -namespaces={{ include "canary.namespaces" $root | fromJsonArray | join "," }}
      {{- if eq $who "retire" }}
      - -retire
      {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      runAsNonRoot: true
      capabilities:
        drop: [ALL]
    resources:
      {{- toYaml $root.Values.resources | nindent 6 }}
{{- end -}}

{{/* Egress rules. */}}
{{- define "canary.egress" -}}
{{- $policy := .Values.networkPolicy -}}
# DNS.
- ports:
    - {protocol: UDP, port: {{ $policy.dns.port }}}
    - {protocol: TCP, port: {{ $policy.dns.port }}}
  {{- with $policy.dns.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# The API server.
- ports:
    {{- range $policy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with $policy.apiServer.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
