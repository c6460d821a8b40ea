{{- define "detector.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "detector.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "detector.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "detector.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "detector.selector" -}}
app.kubernetes.io/name: {{ include "detector.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "detector.labels" -}}
{{- include "detector.labelsWith" (list . dict) -}}
{{- end -}}

{{/* The labels of an object: the chart's, then these, then those of all objects. */}}
{{- define "detector.labelsWith" -}}
{{- $root := first . -}}
{{- $own := include "detector.podLabels" $root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | set $own "helm.sh/chart" -}}
{{- merge $own (last .) $root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Without the chart's version, which would restart the pods. */}}
{{- define "detector.podLabels" -}}
{{ include "detector.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "detector.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "detector.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "detector.priorityClass" -}}
{{- if .Values.priorityClass.name -}}
{{- .Values.priorityClass.name -}}
{{- else if .Values.priorityClass.create -}}
{{- include "detector.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "detector.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "detector.scheme" -}}
{{- ternary "https" "http" (not (empty .Values.listen.tlsSecret)) -}}
{{- end -}}

{{/* An IP address in brackets if it is an IPv6 address. The kubelet replaces $(NODE_IP), which the agent accepts without. */}}
{{- define "detector.host" -}}
{{- if and (contains ":" .) (not (hasPrefix "[" .)) -}}
[{{ . }}]
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* An address at which a listener on this address answers clients on the node. */}}
{{- define "detector.reachable" -}}
{{- $bare := . | trimPrefix "[" | trimSuffix "]" -}}
{{- get (dict "0.0.0.0" "127.0.0.1" "::" "::1") $bare | default $bare -}}
{{- end -}}

{{/* The target of the probe. Without a host it is the pod's address, which is the node's: Pod Security refuses others
     below the level privileged. */}}
{{- define "detector.probe" -}}
{{- $listener := ternary .Values.metricsListen .Values.listen (not (empty .Values.metricsListen.address)) -}}
{{- if not (contains "$" $listener.address) -}}
host: {{ include "detector.reachable" $listener.address | quote }}, {{ end -}}
port: {{ $listener.port }}, scheme: {{ include "detector.scheme" . | upper }}
{{- end -}}

{{/* What is mounted for a directory with IPAM state: the parent, unless other programs have files there. */}}
{{- define "detector.ipamMount" -}}
{{- $shared := list "/" "/run" "/var" "/var/run" "/var/lib" "/var/cache" "/etc" "/opt" "/usr" "/home" "/root" "/mnt" "/srv" "/tmp" "/dev" "/proc" "/sys" -}}
{{- if has (dir .) $shared }}{{ . }}{{ else }}{{ dir . }}{{ end -}}
{{- end -}}

{{/* The mounts of what belongs to `listen`, and their volumes. */}}
{{- define "detector.listenMounts" -}}
{{- if .Values.listen.tokenSecret.name }}
- name: token
  mountPath: /etc/ip-conflict-detector/token
  readOnly: true
{{- end }}
{{- if .Values.listen.tlsSecret }}
- name: tls
  mountPath: /etc/ip-conflict-detector/tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "detector.listenVolumes" -}}
{{- with .Values.listen.tokenSecret.name }}
- name: token
  secret: {secretName: {{ . }}, defaultMode: 256}
{{- end }}
{{- with .Values.listen.tlsSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 256}
{{- end }}
{{- end -}}

{{/* Whether addresses are registered in the Kubernetes API: not empty. In YAML, off without quotes is false. */}}
{{- define "detector.fleet" -}}
{{- if and .Values.kube.enabled (eq (toString .Values.fleet.mode) "kubernetes") }}on{{ end -}}
{{- end -}}

{{/* The version of API Priority and Fairness to use; empty if the cluster has none. Helm without a cluster knows all versions
     of the API, so the version of Kubernetes decides. */}}
{{- define "detector.flowControlVersion" -}}
{{- $kube := .Capabilities.KubeVersion.Version -}}
{{- $version := "v1beta1" -}}
{{- if semverCompare ">=1.29.0-0" $kube -}}
{{- $version = "v1" -}}
{{- else if semverCompare ">=1.26.0-0" $kube -}}
{{- $version = "v1beta3" -}}
{{- else if semverCompare ">=1.23.0-0" $kube -}}
{{- $version = "v1beta2" -}}
{{- end -}}
{{- if .Capabilities.APIVersions.Has (printf "flowcontrol.apiserver.k8s.io/%s" $version) }}{{ $version }}{{ end -}}
{{- end -}}

{{/* Combinations that cannot work, each with one sentence. */}}
{{- define "detector.refuse" -}}
{{- if and .Values.ipam.calico (not .Values.kube.enabled) -}}
{{- fail "ipam.calico reads Calico's blocks from the Kubernetes API: it needs kube.enabled" -}}
{{- end -}}
{{- if and .Values.ipam.kubeOvn (not .Values.kube.enabled) -}}
{{- fail "ipam.kubeOvn reads Kube-OVN's addresses from the Kubernetes API: it needs kube.enabled" -}}
{{- end -}}
{{- if and .Values.ipam.whereabouts (not .Values.kube.enabled) -}}
{{- fail "ipam.whereabouts reads whereabouts' reservations from the Kubernetes API: it needs kube.enabled" -}}
{{- end -}}
{{- if and .Values.ipam.spiderpool (not .Values.kube.enabled) -}}
{{- fail "ipam.spiderpool reads Spiderpool's pools from the Kubernetes API: it needs kube.enabled" -}}
{{- end -}}
{{- if and .Values.priorityClass.create (hasPrefix "system-" .Values.priorityClass.name) -}}
{{- fail (printf "priorityClass.name %s is one of Kubernetes' own classes: set priorityClass.create to false to use it" .Values.priorityClass.name) -}}
{{- end -}}
{{- if and (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled) (not .Values.metricsListen.address) -}}
{{- fail "podMonitor and serviceMonitor need metricsListen.address" -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "podMonitor and serviceMonitor scrape the same agents: enable one of them" -}}
{{- end -}}
{{- end -}}

{{/* Server-side apply refuses a list in which two entries have one key. Takes the list, the key, and what an entry is. */}}
{{- define "detector.refuseDuplicates" -}}
{{- $key := index . 1 -}}
{{- $seen := dict -}}
{{- range first . -}}
{{- $value := get . $key -}}
{{- if hasKey $seen $value -}}
{{- fail (printf "two values give %s %s: `%s` and `%s`" (last $) $value (get $seen $value) .name) -}}
{{- end -}}
{{- $_ := set $seen $value .name -}}
{{- end -}}
{{- end -}}

{{/* How the Prometheus Operator scrapes the port of an agent. Takes the root and the interval. */}}
{{- define "detector.scrape" -}}
{{- $root := first . -}}
port: metrics
path: /metrics
interval: {{ last $ }}
scheme: {{ include "detector.scheme" $root }}
{{- if $root.Values.listen.tlsSecret }}
tlsConfig:
  {{- with $root.Values.listen.tlsCaKey }}
  ca:
    secret: {name: {{ $root.Values.listen.tlsSecret }}, key: {{ . }}}
  {{- end }}
  serverName: {{ include "detector.fullname" $root }}
{{- end }}
{{- with $root.Values.listen.tokenSecret }}
{{- if .name }}
authorization:
  credentials: {name: {{ .name }}, key: {{ .key }}}
{{- end }}
{{- end }}
relabelings:
  # Keeps the labels `namespace` and `pod` of the metrics, which name the pods in a conflict, not the agent's pod.
  - action: labeldrop
    regex: namespace|pod|container|endpoint|service
  # The job that the alert rules and the dashboards select.
  - targetLabel: job
    replacement: ip-conflict-detector
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  {{- with $root.Values.clusterName }}
  - targetLabel: cluster
    replacement: {{ . | quote }}
  {{- end }}
{{- end -}}
