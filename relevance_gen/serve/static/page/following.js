/** Follow-up questions: a question without content words of its own is searched with the words of the previous question. */

const FUNCTION_WORDS = new Set(`a about above after again against all also am an and another any are as at be because been before being below between
  both but by can cannot could did do does doing down during each else even few for from further had has have having he her here
  hers him his how i if in into is it its just let many may me might mine more most much must my no nor not now of off on once
  only or other our ours out over own per same shall she should so some such than that the their theirs them then there these
  they this those through to too under until up upon us very via was we were what when where which while who whom whose why will
  with within without would yes you your yours d ll m re s t ve don doesn didn isn aren wasn weren
  detail details elaborate example examples explain first give last mean means ok okay one ones please say second tell thing things third`.split(/\s+/));
const NUMBER = /^\p{N}+$/u;

/** Return the query of a question: with the previous query in front if it has only function words, and perhaps numbers. */
export function queryOf(question, previous) {
  const words = question.toLowerCase().match(/\p{L}[\p{L}\p{M}\p{N}]*|\p{N}+/gu) ?? [];
  const content = words.filter((word) => !FUNCTION_WORDS.has(word));
  const isComplete = content.length === words.length || content.some((word) => !NUMBER.test(word));
  return isComplete || !previous ? question : `${previous} ${question}`;
}
