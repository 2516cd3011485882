// Package openapi holds a server to its OpenAPI 3.1 description: a test hands it every request
// that it sends and every answer that it gets, and is told what is not as described.
//
// Load reads the description, and fails the test when the document itself is wrong: against
// the meta-schema of OpenAPI 3.1, in a schema or a reference, or because an example does not
// fit its schema. Check then compares one exchange with it. Answers must be as described down
// to the headers that steer a client; requests must be as described when the server took them
// (2xx), so that a description which is stricter than the server is found out as well. Unseen
// lists what no exchange has shown, so that a description cannot promise what nobody tested.
//
// What is not told apart: a request's Content-Type is not looked at, and neither is its
// token, since a server may be run without one. HEAD is taken as GET whose body is left out.
//
// The description says in its root, under x-other-paths, which answers a path or method gets
// that it does not know: an object of responses by status, as in an operation.
//
// What it trades away: of OpenAPI it understands what is needed here, and Load refuses the
// rest rather than pass over it: schemas with an $id or anchor, references out of the
// document, statuses such as default and 4XX, parameters in cookies or of another style
// than the default. A query parameter whose schema is an object stands for all parameters
// with no name of their own, since form style with explode writes its members one by one.
//
// The file openapi-3.1.schema.json is the meta-schema that the OpenAPI Initiative publishes
// at its $id, unchanged, under the Apache License 2.0. It leaves schemas alone; those are
// held to the JSON Schema 2020-12 meta-schema and to the list of keywords in schema.go.
package openapi
