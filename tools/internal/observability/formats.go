package observability

import (
	"encoding/json"
	"strings"
)

type object = map[string]any

// Panels stand in two columns of a grid of 24.
const width, height = 12, 8

// variables are what a reader chooses: a namespace, and some or all services and versions.
// Grafana writes a chosen value for $name.
var variables = []struct { // a constant
	name, label, of string
	many            bool
}{
	{"namespace", "Namespace", `waitlist_build_info`, false},
	{"service", "Service", `waitlist_build_info{namespace="$namespace"}`, true},
	{"version", "Version", `waitlist_build_info{namespace="$namespace"}`, true},
}

// chosen returns an expression with the selectors of the variables in place of $SEL and $NS.
func chosen(expr string) string {
	return strings.NewReplacer(
		"$SEL", `namespace="$namespace",service=~"$service"`, "$NS", `namespace="$namespace"`,
		"waitlist_build_info{$SEL", `waitlist_build_info{namespace="$namespace",service=~"$service",version=~"$version"`,
	).Replace(expr)
}

// grafana returns a dashboard as Grafana's JSON.
func grafana(d Dashboard) ([]byte, error) {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range variables {
		variable := object{
			"name": v.name, "label": v.label, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
			"query": object{"query": "label_values(" + v.of + ", " + v.name + ")", "refId": v.name}, "includeAll": v.many, "multi": v.many,
		}
		if v.many {
			variable["allValue"], variable["current"] = ".*", object{"text": "All", "value": "$__all"}
		}
		list = append(list, variable)
	}
	panels := []object{}
	for i, p := range d.Panels {
		targets := []object{}
		for n, q := range p.Queries {
			targets = append(targets, object{
				"refId": string(rune('A' + n)), "datasource": source, "legendFormat": q.Legend, "expr": chosen(q.Expr),
			})
		}
		panels = append(panels, object{
			"id": i + 1, "type": "timeseries", "title": p.Title, "description": p.Sentence, "datasource": source, "targets": targets,
			"gridPos":     object{"x": i % 2 * width, "y": i / 2 * height, "w": width, "h": height},
			"fieldConfig": object{"defaults": object{"unit": p.Unit}, "overrides": []any{}},
			"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
		})
	}
	out, err := json.MarshalIndent(object{
		"uid": d.UID, "title": d.Title, "tags": []string{"waitlist"}, "schemaVersion": 41, "version": 1, "editable": false,
		"time": object{"from": "now-3h", "to": "now"}, "refresh": "30s", "timezone": "browser", "panels": panels,
		"templating": object{"list": list},
	}, "", "  ")
	return append(out, '\n'), err
}
