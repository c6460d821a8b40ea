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

{{/* The host of the probes; empty for the pod's address, which is the node's. */}}
{{- define "detector.probeHost" -}}
{{- if has .Values.listen.address (list "0.0.0.0" "::" "[::]") -}}
127.0.0.1
{{- else if not (contains "$" .Values.listen.address) -}}
{{- .Values.listen.address | trimPrefix "[" | trimSuffix "]" -}}
{{- end -}}
{{- end -}}
