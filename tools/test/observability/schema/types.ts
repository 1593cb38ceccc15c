// What a generated dashboard must be. Grafana and Perses leave a panel's own options open in the type of a
// dashboard; here they are those of the panels that the generator writes.
import type * as grafana from '@grafana/schema';
import type {
  FieldConfig, Options,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { DashboardResource, ListVariableDefinition, ListVariableSpec, PanelDefinition } from '@perses-dev/core';
import type { PrometheusLabelValuesVariableOptions } from '@perses-dev/prometheus-plugin/lib/plugins/types';
import type {
  PrometheusTimeSeriesQuerySpec,
} from '@perses-dev/prometheus-plugin/lib/plugins/prometheus-time-series-query/time-series-query-model';
import type { TimeSeriesChartOptions } from '@perses-dev/timeseries-chart-plugin/lib/time-series-chart-model';

/** A type as JSON has it: the values of an enum are its strings. */
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

/** What the model of Grafana's data source for Prometheus reads. */
interface Target { refId: string; datasource: grafana.DataSourceRef; expr: string; legendFormat: string }

type Some<T> = { [K in keyof T]?: Partial<T[K]> };

type GrafanaPanel = Omit<grafana.Panel, 'type' | 'options' | 'targets' | 'fieldConfig'> & {
  type: 'timeseries';
  options: Some<Options>;
  fieldConfig: grafana.FieldConfigSource<FieldConfig>;
  targets: Target[];
};

export type Grafana = Plain<Omit<grafana.Dashboard, 'panels'> & { panels: GrafanaPanel[] }>;

interface Plugin<Kind, Spec> { kind: Kind; spec: Spec }

type PersesPanel = Omit<PanelDefinition, 'spec'> & {
  spec: Omit<PanelDefinition['spec'], 'plugin' | 'queries'> & {
    plugin: Plugin<'TimeSeriesChart', TimeSeriesChartOptions>;
    queries: Plugin<'TimeSeriesQuery', { plugin: Plugin<'PrometheusTimeSeriesQuery', PrometheusTimeSeriesQuerySpec> }>[];
  };
};

type PersesVariable = Omit<ListVariableDefinition, 'spec'> & {
  spec: Omit<ListVariableSpec, 'plugin'> & { plugin: Plugin<'PrometheusLabelValuesVariable', PrometheusLabelValuesVariableOptions> };
};

export type Perses = Omit<DashboardResource, 'spec'> & {
  spec: Omit<DashboardResource['spec'], 'panels' | 'variables'> & { panels: Record<string, PersesPanel>; variables: PersesVariable[] };
};
