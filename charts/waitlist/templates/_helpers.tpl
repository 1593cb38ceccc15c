{{- define "waitlist.labels" -}}
app.kubernetes.io/name: waitlist
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: waitlist
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "waitlist-%s" .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The services, as in Chart.yaml: pages only where it is enabled. */}}
{{- define "waitlist.services" -}}
{{- $names := list -}}
{{- range .Chart.Dependencies }}{{ $names = append $names .Name }}{{ end -}}
{{- toJson $names -}}
{{- end -}}

{{/* The prefixes as a JSON object: service to a list of prefixes. */}}
{{- define "waitlist.prefixes" -}}
{{- $routes := dict -}}
{{- range (.Files.Get "files/routes.yaml" | fromYaml).prefixes -}}
{{- if or (ne .service "pages") $.Values.pages.enabled -}}
{{- $_ := set $routes .service (append (get $routes .service | default list) .prefix) -}}
{{- end -}}
{{- end -}}
{{- toJson $routes -}}
{{- end -}}

{{/* The prefixes without those of the services that gateway.ownedByOperator names. */}}
{{- define "waitlist.routes" -}}
{{- $routes := include "waitlist.prefixes" . | fromJson -}}
{{- range .Values.gateway.ownedByOperator }}{{ $_ := unset $routes . }}{{ end -}}
{{- toJson $routes -}}
{{- end -}}

{{/* The time-out of a prefix. */}}
{{- define "waitlist.timeout" -}}
{{- $timeouts := (index . 0).Values.gateway.timeouts -}}
{{- ternary $timeouts.transfer $timeouts.request (eq (index . 1) "/v1/waitlists") -}}
{{- end -}}

{{/* The services that are released by canary, as a JSON list. */}}
{{- define "waitlist.canaries" -}}
{{- $names := list -}}
{{- if .Values.global.canary.enabled -}}
{{- range include "waitlist.services" . | fromJsonArray -}}
{{- $service := get $.Values . -}}
{{- if and $service.enabled $service.canary.enabled }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* The checks of a service, as a Canary's analysis.checks. During a release, no calls or events may come, so their checks hold up no
     candidate. */}}
{{- define "waitlist.checks" -}}
{{- if .http }}
- name: errors
  all: {metric: http_server_responses_total}
  bad: {metric: http_server_responses_total, labels: {http_response_status_code: 5..}}
- name: latency in seconds
  all: {metric: http_server_request_duration_seconds}
  boundaries: ["0.005", "0.025", "0.1", "0.25", "0.5", "1", "2.5", "10"]
{{- end }}
{{- if .grpc }}
- name: errors of gRPC
  all: {metric: rpc_server_call_duration_seconds}
  bad:
    metric: rpc_server_call_duration_seconds
    labels: {rpc_response_status_code: UNKNOWN|DEADLINE_EXCEEDED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS}
  sample: 0
{{- end }}
{{- if .networkPolicy.kafka }}
- name: dead letters
  all: {metric: kafka_consumer_handled_total}
  bad: {metric: kafka_consumer_dead_letters_total}
  sample: 0
{{- end }}
{{- end -}}
