// Renders a chart as Helm does, for the features this project's chart uses: values merged over
// values.yaml, named templates, sprig and Helm's own functions. No dependencies, hooks or cluster.
//
// helm-render CHART RELEASE NAMESPACE [VALUES.yaml] prints a JSON object: file name → text.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type files map[string]string

func (f files) Get(name string) string { return f[name] }

func (f files) Glob(pattern string) files {
	found := files{}
	for name, text := range f {
		if ok, _ := path.Match(pattern, name); ok {
			found[name] = text
		}
	}
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(name string) map[string]interface{} {
	text, err := os.ReadFile(name)
	check(err)
	values := map[string]interface{}{}
	check(yaml.Unmarshal(text, &values))
	// Helm reads YAML through JSON, so every number is a float.
	text, err = json.Marshal(values)
	check(err)
	values = map[string]interface{}{}
	check(json.Unmarshal(text, &values))
	return values
}

// As in Helm: maps are merged, other values replaced, null removes a key.
func merge(under, over map[string]interface{}) {
	for key, value := range over {
		inner, isMap := value.(map[string]interface{})
		below, wasMap := under[key].(map[string]interface{})
		switch {
		case value == nil:
			delete(under, key)
		case isMap && wasMap:
			merge(below, inner)
		default:
			under[key] = value
		}
	}
}

func toYaml(value interface{}) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	// Parsed as YAML, integers are integers again.
	var plain interface{}
	if err := yaml.Unmarshal(text, &plain); err != nil {
		return "", err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err = encoder.Encode(plain)
	return strings.TrimSuffix(out.String(), "\n"), err
}

func main() {
	if len(os.Args) < 4 {
		check(fmt.Errorf("usage: helm-render CHART RELEASE NAMESPACE [VALUES.yaml]"))
	}
	chart := os.Args[1]
	values := read(filepath.Join(chart, "values.yaml"))
	if len(os.Args) > 4 {
		merge(values, read(os.Args[4]))
	}
	meta := read(filepath.Join(chart, "Chart.yaml"))
	about := map[string]interface{}{}
	for key, value := range meta {
		about[strings.ToUpper(key[:1])+key[1:]] = value
	}
	extra := files{}
	templates := map[string]string{}
	check(filepath.Walk(chart, func(name string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		// Follows symbolic links, as Helm does.
		info, err := os.Stat(name)
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		relative, _ := filepath.Rel(chart, name)
		if strings.HasPrefix(relative, "templates/") {
			templates[relative] = string(text)
		} else {
			extra[relative] = string(text)
		}
		return err
	}))

	root := template.New("chart")
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = toYaml
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	root.Funcs(functions)
	for name, text := range templates {
		_, err := root.New(name).Parse(text)
		check(err)
	}
	data := map[string]interface{}{
		"Values":  values,
		"Chart":   about,
		"Files":   extra,
		"Release": map[string]interface{}{"Name": os.Args[2], "Namespace": os.Args[3], "Service": "Helm", "IsInstall": true, "Revision": 1},
	}
	rendered := map[string]string{}
	for name := range templates {
		if strings.HasPrefix(path.Base(name), "_") {
			continue
		}
		var out bytes.Buffer
		check(root.ExecuteTemplate(&out, name, data))
		// Helm also prints this for a missing value; in a chart it is an error.
		if strings.Contains(out.String(), "<no value>") {
			check(fmt.Errorf("%s: a value that values.yaml does not have", name))
		}
		rendered[path.Base(name)] = out.String()
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}
