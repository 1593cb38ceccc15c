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

{{/* The prefixes as a JSON object: service to a list of prefixes, without those of
     services whose routes somebody else owns. */}}
{{- define "waitlist.routes" -}}
{{- $routes := dict -}}
{{- range (.Files.Get "files/routes.yaml" | fromYaml).prefixes -}}
{{- if not (has .service $.Values.gateway.ownedByOperator) -}}
{{- $_ := set $routes .service (append (get $routes .service | default list) .prefix) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.pages.enabled (not (has "pages" $.Values.gateway.ownedByOperator)) -}}
{{- $_ := set $routes "pages" (list "/") -}}
{{- end -}}
{{- toJson $routes -}}
{{- end -}}
