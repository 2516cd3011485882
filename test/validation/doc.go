// Package validation holds the Proxy CRD to the contract on a real API server: what it
// refuses, and with which words; what it accepts, changes on update and fills in; and what
// kubectl shows. The product has no webhook, so this schema is all that stands between a
// typing error and an instance.
//
// Every constraint of ours in the generated CRD must be one that a table here expects, and
// every rule must have refused something: a marker that is lost, or added without a case,
// fails. What lies within types of Kubernetes' own (a variable, a toleration) is theirs, our
// rules about it apart.
package validation
