{{- /* The tables of the gateway's settings with the addresses of the key services. */}}
{{- define "pqkeep.shards" -}}
[link]
name = {{ .Values.cluster.name | quote }}
{{ include "pqkeep.link" (dict "root" . "secrets" (include "pqkeep.secrets-folder" "gateway")) }}
{{- range $shard := .Values.cluster.shards }}
[shards.{{ $shard.name }}]
addresses = [
{{- $service := printf "%s-keyservice-%s" $.Release.Name $shard.name }}
{{- range $number := until (int $shard.replicas) }}
  "{{ $service }}-{{ $number }}.{{ $service }}:7443",
{{- end }}
]
{{- end }}
{{- end }}

{{- /* The settings of a shard's key services. Takes root, shard and secrets, the folder. */}}
{{- define "pqkeep.shard-settings" -}}
shard = {{ .shard.name | quote }}
operator_socket = "/run/pqkeep/operator.sock"
database = {{ .shard.database | quote }}
database_password_file = "{{ .secrets }}/passwords"
root_key_file = "{{ .secrets }}/root.key"
transfer_key_file = "{{ .secrets }}/transfer.key"
log_format = "json"
{{ .root.Values.keyservice.settings }}
[link]
listen = "0.0.0.0:7443"
{{ include "pqkeep.link" . }}
{{- end }}

{{- /* A process's certificate for the link. Takes root and secrets, the folder. */}}
{{- define "pqkeep.link" -}}
certificate = "{{ .secrets }}/link.crt"
key = "{{ .secrets }}/link.key"
ca = "{{ .secrets }}/link.ca"
require_post_quantum = {{ .root.Values.cluster.requirePostQuantum }}
{{ end }}

{{- define "pqkeep.require" -}}
{{- if not (hasPrefix "postgresql:" .Values.gateway.database) }}
{{- fail "cluster.enabled: gateway.database must be a postgresql:// address" }}
{{- end }}
{{- if not .Values.gateway.redisUrl }}
{{- fail "cluster.enabled: several gateways need gateway.redisUrl" }}
{{- end }}
{{- $names := list }}
{{- range .Values.cluster.shards }}
{{- if not (hasPrefix "postgresql:" .database) }}
{{- fail (printf "cluster.shards: the database of %s must be a postgresql:// address" .name) }}
{{- end }}
{{- if gt (add (len $.Release.Name) (len "-keyservice-") (len .name)) 52 }}
{{- fail (printf "choose a shorter name of the release, or of the shard %s: both have more than 40 characters" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- if not (has "default" $names) }}
{{- fail "cluster.shards: one shard must be named default" }}
{{- end }}
{{- if ne (len $names) (len (uniq $names)) }}
{{- fail "cluster.shards: two shards have the same name" }}
{{- end }}
{{- end }}

{{- /* The folder of a shard in a data directory. */}}
{{- define "pqkeep.shard-folder" -}}
keyservice{{ if ne . "default" }}-{{ . }}{{ end }}
{{- end }}
