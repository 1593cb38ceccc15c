{{/* <release>-<service>, the name of every object. Never cut: services find each other by it. */}}
{{- define "service.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name -}}
{{- if gt (len $name) 54 -}}
{{- fail (printf "The release name is too long: %s-internal exceeds 63 characters." $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The selector of serving pods. It never changes, because a Deployment's selector is immutable. */}}
{{- define "service.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{/* Labels of a pod; call with (list $ "component"). They leave out the chart's
     version, which would restart pods that nothing else changes. */}}
{{- define "service.podLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: waitlist
{{- with $root.Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of an object; call with (list $ "component"). */}}
{{- define "service.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: waitlist
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "service-%s" $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "service.image" -}}
{{- $image := .Values.image -}}
{{- $repository := $image.repository -}}
{{- if not $repository -}}
{{- $message := "Set global.image.repository to the repository that the images were pushed to." -}}
{{- $repository = printf "%s/%s" (required $message .Values.global.image.repository) .Chart.Name -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* "true" if the operator releases this service. */}}
{{- define "service.canary" -}}
{{- if and (get (.Values.global.canary | default dict) "enabled") .Values.canary.enabled }}true{{ end -}}
{{- end -}}

{{/* The Deployment that serves, which an autoscaler scales. */}}
{{- define "service.serving" -}}
{{ include "service.fullname" . }}{{ if include "service.canary" . }}-stable{{ end }}
{{- end -}}

{{/* A value as text. Numbers of YAML arrive as floats. */}}
{{- define "service.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* The services that this one calls, and those that call it. */}}
{{- define "service.callees" -}}
{{- toJson (get .Values.global.calls .Chart.Name | default list | sortAlpha) -}}
{{- end -}}
{{- define "service.callers" -}}
{{- $callers := list -}}
{{- range $caller, $callees := .Values.global.calls -}}
{{- if has $.Chart.Name $callees }}{{ $callers = append $callers $caller }}{{ end -}}
{{- end -}}
{{- toJson ($callers | sortAlpha) -}}
{{- end -}}

{{/* The plain environment as a JSON object. Later sources win over earlier ones. */}}
{{- define "service.environment" -}}
{{- $address := ternary "$(POD_IP)" "" .Values.global.bindPodIP -}}
{{- $env := dict
      "INTERNAL_ADDR" (printf "%s:8081" $address)
      "MIGRATE" "false"
      "SHUTDOWN_DELAY" (printf "%vs" .Values.shutdown.delaySeconds)
      "SHUTDOWN_DRAIN" (printf "%vs" .Values.shutdown.drainSeconds) -}}
{{- if .Values.http }}{{ $_ := set $env "HTTP_ADDR" (printf "%s:8080" $address) }}{{ end -}}
{{- if include "service.canary" . }}
{{- /* The stable copy overrides it (spec.stableEnv of the Canary): what one replica does for all, no candidate does. */ -}}
{{ $_ := set $env "CANDIDATE" "true" }}
{{- end -}}
{{- if .Values.grpc }}{{ $_ := set $env "GRPC_ADDR" (printf "%s:9090" $address) }}{{ end -}}
{{- range include "service.callees" . | fromJsonArray -}}
{{- $_ := set $env (printf "%s_GRPC" . | upper | replace "-" "_")
      (printf "dns:///%s-%s-grpc.%s.svc.%s:9090" $.Release.Name . $.Release.Namespace $.Values.global.clusterDomain) -}}
{{- end -}}
{{- range $source := list .Values.global.env .Values.env -}}
{{- range $name, $value := $source -}}
{{- $text := include "service.text" $value -}}
{{- if $text }}{{ $_ := set $env $name $text }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* env and envFrom of a container. */}}
{{- define "service.env" -}}
{{- $env := include "service.environment" . | fromJson -}}
env:
  {{- if .Values.global.bindPodIP }}
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- end }}
  {{- if and .Values.http (not (hasKey $env "REPLICAS")) }}
  # charts/waitlist counts the replicas of all services.
  - name: REPLICAS
    valueFrom:
      configMapKeyRef:
        name: {{ .Release.Name }}-suite
        key: REPLICAS
        optional: true
  {{- end }}
  {{- range $name, $value := $env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- with compact (list (ternary .Values.global.existingSecret "" .Values.sharedSecret) .Values.existingSecret) }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "service.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "service.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "service.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- range concat .Values.global.certificates .Values.certificates }}
- name: certificates-{{ .name }}
  mountPath: /etc/certificates/{{ .name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "service.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- range concat .Values.global.certificates .Values.certificates }}
- name: certificates-{{ .name }}
  {{- if .secret }}
  secret:
    secretName: {{ .secret }}
    # Only the certificate: operators keep the authority's private key beside it.
    items: [{key: ca.crt, path: ca.crt}]
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ .configMap }}
    items: [{key: ca.crt, path: ca.crt}]
    defaultMode: 0440
  {{- end }}
{{- end }}
{{- end -}}

{{/* Common to the spec of every pod. */}}
{{- define "service.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "service.podSecurityContext" . | nindent 2 }}
{{- with .Values.global.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Egress rules; call with (list $ "server"|"migration"). */}}
{{- define "service.egress" -}}
{{- $root := index . 0 -}}
{{- $server := eq (index . 1) "server" -}}
{{- $policy := $root.Values.global.networkPolicy -}}
{{- $own := $root.Values.networkPolicy -}}
# DNS.
- ports:
    - {protocol: UDP, port: {{ $policy.dns.port }}}
    - {protocol: TCP, port: {{ $policy.dns.port }}}
  {{- with $policy.dns.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- $env := include "service.environment" $root | fromJson -}}
{{- $peers := list
      (list "PostgreSQL." $own.postgres $policy.postgres)
      (list "Redis." (and $own.redis $server) $policy.redis)
      (list "Kafka." $own.kafka $policy.kafka)
      (list "Spans." (hasKey $env "OTEL_EXPORTER_OTLP_ENDPOINT") $policy.otlp) -}}
{{- range $peers }}
{{- $peer := index . 2 }}
{{- if index . 1 }}
# {{ index . 0 }}
- ports:
    - {protocol: TCP, port: {{ $peer.port }}}
  {{- with $peer.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- if $server }}
{{- range include "service.callees" $root | fromJsonArray }}
# Calls of {{ . }}.
- ports:
    - {protocol: TCP, port: 9090}
  to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: {{ . }}
          app.kubernetes.io/instance: {{ $root.Release.Name }}
          app.kubernetes.io/component: server
{{- end }}
{{- if $own.internet.enabled }}
# The internet.
- to:
    - ipBlock:
        cidr: 0.0.0.0/0
        {{- with $policy.private }}
        except: {{ toJson . }}
        {{- end }}
    - ipBlock:
        cidr: ::/0
        {{- with $policy.privateV6 }}
        except: {{ toJson . }}
        {{- end }}
  ports:
    {{- range $own.internet.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- else }}
    - protocol: TCP
    {{- end }}
{{- end }}
{{- with $own.egress }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}
