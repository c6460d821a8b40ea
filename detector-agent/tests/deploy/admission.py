"""Applies ValidatingAdmissionPolicies to requests, as the API server does: prints the messages of the refusals of each request.

Usage: admission.py POLICIES REQUESTS (JSON). CEL is evaluated by cel-python, which lacks the string functions of Kubernetes.
"""

import json
import sys

import celpy
from celpy import celtypes, json_to_cel

ENVIRONMENT = celpy.Environment()
FUNCTIONS = {"replace": lambda text, old, new: celtypes.StringType(text.replace(old, new))}


def evaluate(expression, names):
    program = ENVIRONMENT.program(ENVIRONMENT.compile(expression), functions=FUNCTIONS)
    return program.evaluate(names)


def matches(policy, request):
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    return any(
        request["resource"] in rule["resources"] and request["operation"] in rule["operations"]
        for rule in rules
    )


def refusals(policy, request, params):
    spec = policy["spec"]
    known = {
        "request": {"operation": request["operation"], "userInfo": request["userInfo"]},
        "object": request["object"],
        "oldObject": request["oldObject"],
        "params": params,
    }
    names = {name: json_to_cel(value) for name, value in known.items()}
    if not all(evaluate(condition["expression"], names) for condition in spec["matchConditions"]):
        return
    names["variables"] = celtypes.MapType()
    for variable in spec.get("variables", []):
        value = evaluate(variable["expression"], names)
        names["variables"][celtypes.StringType(variable["name"])] = value
    for validation in spec["validations"]:
        if not evaluate(validation["expression"], names):
            yield validation["message"]


policies, requests = [json.load(open(path)) for path in sys.argv[1:]]
answers = []
for request in requests:
    answers.append([])
    for policy in policies:
        if matches(policy, request):
            # A policy with parameters is applied with each of them.
            parameters = request["nodes"] if "paramKind" in policy["spec"] else [None]
            for params in parameters:
                answers[-1].extend(refusals(policy, request, params))
print(json.dumps(answers))
