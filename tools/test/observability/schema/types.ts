// What a generated dashboard must be. Grafana leaves a panel's own options open in the type of a
// dashboard; here they are those of the panels that the generator writes.
import type * as grafana from '@grafana/schema';
import type {
  FieldConfig, Options,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

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
